"""Processes that measure: started, connected, watched and ended.

A *leader* (one for each team) forks the ranks, or has them started by a launcher; then each rank's process
runs an *agent*, which connects to its leader. Under ``mpirun -n N ccbench run`` the processes that the
launcher started are agents too, and the run's own process is the *hub* through which leaders reach them.

How a rank starts, module by module (mpirun, srun and torchrun alike):

- on one host: ``team`` starts the ``leader``, which forks (``launcher.ForkedRanks``) and runs
  ``rank.run_rank`` in each fork;
- ``ccbench run --launch 'srun -n 16'``: ``discovery`` asks once who comes; then ``team``, ``leader``,
  ``launcher.CommandLauncher``, which has srun start ``agent.serve_one_team`` in every process;
- ``srun -n 16 ccbench run``: ``rendezvous`` tells from the environment that this is rank 3 of 16, finds the
  first process; ``hub.join_run`` makes an ``agent.LaunchedProcessAgent`` of each and starts the run in a
  process of its own, with a connection to each; ``discovery`` asks them what their hosts are, and
  ``launcher.AgentLauncher`` has them start ranks.
"""
