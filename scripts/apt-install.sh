#!/bin/sh
# apt-install.sh PACKAGE    installs a Debian package: as root, without a question, and without starting its service.
#
# Debian starts a service when its package is installed, and at every boot from then on. Here only the programs are
# wanted: tests run RabbitMQ and Prometheus privately in temporary folders, and ports 5672 and 9090 may be taken.
set -eu
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
package=$1

case "$package" in rabbitmq-server | prometheus) service=$package ;; *) service= ;; esac

if [ "$service" ]; then
  # The scripts of packages ask this program whether a service may start; 101 means no. Where there is one,
  # it is somebody's decision and stays; if it would let the service start, nothing is installed.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    # Only for this service, so that it does no harm if this script is killed before it can clean up.
    printf '#!/bin/sh\ncase "$1" in %s*) exit 101 ;; esac\n' "$service" >"$policy"
    chmod 755 "$policy"
  fi
  answer=0
  "$policy" "$service" start >/dev/null 2>&1 || answer=$?
  if [ "$answer" != 101 ]; then
    echo "$policy, which was here before, lets $service start as a service. Install it yourself." >&2
    exit 1
  fi
fi

apt-get update -qq || true # a source out of reach matters only if the package is there
apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "$package"

if [ "$service" ]; then
  update-rc.d "$service" disable # at boot too, whichever init there is
fi
