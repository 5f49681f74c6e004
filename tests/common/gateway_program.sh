# Test scripts source this file.

# gateway_program debug|release: prints the absolute path of the gateway's binary: that in TOKENWEIR, or else
# that of a new build.
gateway_program() {
  local root
  root=$(realpath "${BASH_SOURCE[0]%/*}/../..")
  if [[ -z ${TOKENWEIR:-} ]]; then
    # Cargo calls the profile whose output folder is `debug` `dev`.
    cargo build --locked --quiet --bin tokenweir --profile "${1/debug/dev}" --manifest-path "$root/Cargo.toml" || return
  fi
  realpath "${TOKENWEIR:-${CARGO_TARGET_DIR:-$root/target}/$1/tokenweir}"
}
