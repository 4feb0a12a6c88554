"""Who moves where as load shifts (rules L5 to L8)."""
