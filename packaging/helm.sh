#!/usr/bin/env bash
# Copies the alert rules and the dashboards into the Helm chart, which needs them for prometheusRule and
# dashboards. With OUT, also packages the chart into that folder:
#
#   packaging/helm.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."
chart=packaging/helm/tokenweir
mkdir -p "$chart/files"
cp config/prometheus/{alert,recording}-rules.yml config/grafana/dashboards/{overview,backend}.json "$chart/files/"
[ $# = 0 ] || helm package "$chart" --destination "$1"
