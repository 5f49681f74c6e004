#!/usr/bin/env bash
# Copies the alert rules and the dashboards into the Helm chart, which needs them for prometheusRule and
# dashboards. With OUT, also packages the chart into that folder:
#
#   packaging/helm.sh [OUT]
#
#   IMAGE  the image that the packaged chart installs by default, such as ghcr.io/OWNER/tokenweir (default: tokenweir)
set -euo pipefail
cd "$(dirname "$0")/.."
chart=packaging/helm/tokenweir
mkdir -p "$chart/files"
cp config/prometheus/{alert,recording}-rules.yml config/grafana/dashboards/{overview,backend}.json "$chart/files/"
[ $# != 0 ] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$chart" "$scratch"
sed -i "s|^  repository: tokenweir\$|  repository: ${IMAGE:-tokenweir}|" "$scratch/tokenweir/values.yaml"
helm package "$scratch/tokenweir" --destination "$1"
