"""Tasks that copy regular files, symbolic links, FIFOs, sockets and devices, and give the copies their final names."""
