"""Long work: files, and jobs that outlive their clients' connections."""
