"""What engines have answered and clients have not read."""
