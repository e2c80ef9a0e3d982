#!/bin/sh
#SBATCH --nodes=4 --ntasks-per-node=8 --time=08:00:00 --signal=USR1@600 --requeue --open-mode=append
srun pcopy --checkpoint "$HOME/move.job" --verify --errors failed.jsonl "$1" "$2"
status=$?
if [ $status -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
