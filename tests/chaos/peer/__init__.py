"""What people do today instead: an SSH reverse tunnel for each engine, behind nginx."""
