"""What the processes of one gateway tell each other beside the agents: work done, speeds learnt, suspects."""
