#!/bin/bash
# usage: enter_host.sh [-options…] HOST COMMAND…
# Runs a command on a host of network.py, under that host's name.  It stands in for ssh, whose
# options it leaves out, and like ssh hands the command's words to a shell.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
