# The programs that tests/stack.sh needs, and their versions. install.sh sources this file.

# Debian packages, in the versions of the machine's Debian release.
DEBIAN=(prometheus prometheus-alertmanager libjs-jquery)
BROWSER=(chromium chromium-common chromium-driver)

# Go module of Jaeger 2.13.0. The module path has no /v2, so each release also has a v1 tag.
JAEGER=github.com/jaegertracing/jaeger@v1.76.0

# Version of the OpenTelemetry Collector. It is built with exactly the components that config/otel/ uses.
OTEL=v0.155.0
OTEL_PROVIDERS=v1.61.0
OTEL_CORE=go.opentelemetry.io/collector
OTEL_CONTRIB=github.com/open-telemetry/opentelemetry-collector-contrib
RECEIVERS=("$OTEL_CORE/receiver/otlpreceiver")
PROCESSORS=(
  "$OTEL_CORE/processor/batchprocessor" "$OTEL_CORE/processor/memorylimiterprocessor"
  "$OTEL_CONTRIB/processor/tailsamplingprocessor"
)
CONNECTORS=("$OTEL_CORE/connector/forwardconnector" "$OTEL_CONTRIB/connector/spanmetricsconnector")
EXPORTERS=(
  "$OTEL_CORE/exporter/debugexporter" "$OTEL_CORE/exporter/otlpexporter"
  "$OTEL_CORE/exporter/otlphttpexporter" "$OTEL_CONTRIB/exporter/prometheusexporter"
)
EXTENSIONS=("$OTEL_CONTRIB/extension/healthcheckextension")
PROVIDERS=("$OTEL_CORE/confmap/provider/"{env,file,yaml}provider)
