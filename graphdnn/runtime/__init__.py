"""Running an ordered list of plans: devices, memory, schedules, programs."""
