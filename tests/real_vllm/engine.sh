# Finds a real vLLM and creates a temporary folder. Sourced by ../real_vllm.sh, ../real_vllm_routing.sh and
# ../real_vllm_sessions.sh, which describe REAL_VLLM and VENV. Defines skip, engine, VENV, work and RUN. On exit it
# stops the processes that the script has started.

skip() { echo "skipped: $*"; exit 0; }

engine_folder() {
  local root folder
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  for folder in ${REAL_VLLM:+"$REAL_VLLM"} "$root"/../real-vllm "$root"/../*/real-vllm; do
    [[ -x $folder/serve.sh && -x $folder/stop.sh ]] && { (cd "$folder" && pwd); return; }
  done
  return 1
}

engine=$(engine_folder) || skip "no serve.sh and stop.sh of a real vLLM; set REAL_VLLM"
VENV=${VENV:-$engine/.venv-vllm}
[[ -x $VENV/bin/python && -d $VENV/tiny ]] || skip "no vLLM environment in $VENV; set VENV"
VENV=$(cd "$VENV" && pwd)
export VENV

work=$(mktemp -d)
export RUN=$work/run
mkdir "$RUN"

cleanup() {
  local status=$? file pid
  trap - EXIT
  for pid in $(jobs -pr); do kill -TERM "$pid" 2>/dev/null || true; done
  for file in "$RUN"/*.pid; do # PID files of backends that this script started
    [[ -f $file ]] && "$engine/stop.sh" "$(basename "$file" .pid)" >/dev/null 2>&1 &
  done
  wait
  if [[ $status -eq 0 ]]; then rm -rf "$work"; else echo "the logs are in $work" >&2; fi
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
