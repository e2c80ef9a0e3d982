#!/bin/sh
# mpiexec.sh HOSTFILE SRC DST; each line of HOSTFILE is the name of a host, once for each rank that is to run there
exec mpiexec -machinefile "$1" pcopy --checkpoint "$HOME/move.job" --verify --errors failed.jsonl "$2" "$3"
