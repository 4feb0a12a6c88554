"""Plans moves of partitions as load shifts (rules L5 to L8)."""
