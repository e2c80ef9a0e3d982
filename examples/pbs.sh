#!/bin/sh
#PBS -l select=4:ncpus=8:mpiprocs=8 -l walltime=08:00:00
trap : USR1
cd "$PBS_O_WORKDIR" || exit
timeout --preserve-status --signal=USR1 470m mpiexec -machinefile "$PBS_NODEFILE" \
    pcopy --checkpoint "$HOME/move.job" --verify --errors failed.jsonl "$SRC" "$DST"
status=$?
if [ $status -eq 75 ]; then qsub -v SRC,DST pbs.sh; fi
exit $status
