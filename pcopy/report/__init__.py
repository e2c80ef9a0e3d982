"""What people and programs are told of a job."""
