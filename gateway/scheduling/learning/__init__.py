"""What is learnt of requests, models and devices, and predicted from it. Pure."""
