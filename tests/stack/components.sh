# The components of tests/stack.sh and their versions. Sourced by install.sh.

# Debian packages, in the version of the machine's release.
DEBIAN=(prometheus prometheus-alertmanager libjs-jquery)
BROWSER=(chromium chromium-common chromium-driver)

# Go modules. This is Jaeger 2.13.0: the module path has no /v2, and each release also has a v1 tag.
JAEGER=github.com/jaegertracing/jaeger@v1.76.0

# The OpenTelemetry Collector contains exactly the components that config/otel/ uses.
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

# Python packages, each in its own virtual environment.
