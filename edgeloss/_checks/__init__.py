"""What a user passes → checked values, or an error that says what to do."""
