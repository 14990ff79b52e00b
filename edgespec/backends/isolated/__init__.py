"""An engine of others behind a wall: in a process of its own that reaches nothing but its model."""
