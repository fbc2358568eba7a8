"""Drawing of the generated data set, in integer arithmetic."""
