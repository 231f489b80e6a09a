"""Text from outside: made safe where it comes in, and free of secrets."""
