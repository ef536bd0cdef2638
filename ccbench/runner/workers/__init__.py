"""Processes that measure: started, connected, watched and ended.

A *leader* (one for each team) forks the ranks, or has them started by a launcher; then each rank's process
runs an *agent*, which connects to its leader. Under ``mpirun -n N ccbench run`` the processes that the
launcher started are agents too, and the first of them keeps the *hub* through which leaders reach the others.
"""
