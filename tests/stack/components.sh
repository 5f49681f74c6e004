# The real components that tests/stack.sh runs, and their versions. Read by install.sh.

# Debian packages: what is installed or in the release that the machine runs.
DEBIAN=(prometheus prometheus-alertmanager libjs-jquery)
BROWSER=(chromium)

# Go modules. Jaeger 2.13.0: the module path has no /v2, and each release has a v1 tag as well.
JAEGER=github.com/jaegertracing/jaeger@v1.76.0

# The OpenTelemetry Collector has what config/otel/ names, and no more.
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

# Python packages, each in an environment of its own.
PHOENIX=arize-phoenix==20.26.1
