"""Result objects: one tidy table each, which checks its own arithmetic."""
