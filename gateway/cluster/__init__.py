"""The other processes of this gateway: who they are, and what agents are told for their sake."""
