"""`transom bench`: kernels, the memory core and the scheduler of this machine, and servers over HTTP."""
