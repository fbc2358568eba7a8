"""Model, data and checkpoint code shared by the examples."""
