"""The simulated world: clock, network, disks, processes."""
