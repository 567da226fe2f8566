# Sourced by deploy/quickstart and tests/run, from the repository's root. Needs bash and Python 3.11+, nothing else.

# Prints the interpreter to use: new enough and able to make a virtual environment. That is PYTHON, else of those on the PATH
# the first of the best: with headers, so that the native functions can be built, then built with optimisations itself,
# which saves a quarter of all time. Says what to do if there is none.
find_python() {
    local candidate said best="" known=-1
    local question='import ensurepip, sys
if sys.version_info >= (3, 11):
    sys.path.insert(0, ".")
    from shared.process.interpreter import grade
    print(grade(), sys.executable)'
    while read -r candidate; do
        said=$("$candidate" -B -c "$question" </dev/null 2>/dev/null) || continue
        if [ -n "$said" ] && [ "$candidate" = "${PYTHON:-}" ]; then
            echo "${said#* }"
            return 0
        fi
        if [ -n "$said" ] && [ "${said%% *}" -gt "$known" ]; then
            known="${said%% *}" best="${said#* }"
        fi
    done < <(printf '%s\n' ${PYTHON:+"$PYTHON"}; type -aP python3.11 python3.12 python3.13 python3.14 python3)
    if [ -n "$best" ]; then
        if [ -n "${PYTHON:-}" ]; then
            echo "== $PYTHON, which PYTHON names, is not Python 3.11 or newer with its venv module; $best is used" >&2
        fi
        echo "$best"
        return 0
    fi
    echo "Trunkline needs Python 3.11 or newer with its venv module (on Debian: apt-get install python3-venv)." >&2
    echo "Set PYTHON=/path/to/python3 if it is not on the PATH." >&2
    return 1
}

# environment EXTRAS: makes .venv and installs this checkout with those extras, unless that was done already.
# The stamp holds a checksum of what was asked for, so a second run costs a comparison.
environment() {
    local extras="$1" wanted stamp
    wanted=$(cat pyproject.toml deploy/constraints.txt shared/speedups/*.c | cksum)
    for stamp in ".venv/.trunkline-$extras" ".venv/.trunkline-torch,test"; do
        if [ -x .venv/bin/trunkline ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
            return 0
        fi
    done
    if ! .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        local python
        python=$(find_python)
        echo "== making .venv with $python" >&2
        "$python" -m venv --clear .venv
    fi
    echo "== installing trunkline[$extras] into .venv (the first time this downloads some hundred megabytes)" >&2
    pip_install -e ".[$extras]"
    .venv/bin/python -m shared.process.build >&2
    printf '%s\n' "$wanted" >".venv/.trunkline-$extras"
}

UV="uv==0.13.9"

# pip_install ARGUMENTS: pip install with the project's pins, by uv where that can be had, which takes a third of the time.
# What is said goes to .venv/install.log; on the screen is how far it is: on a terminal a line that changes every second,
# else a line every ten seconds.
# Python compiles a module when it is first imported, and keeps that; compiling all of them here, of which few are ever
# imported, takes longer than all the rest. Where Python may not keep it, they are compiled here after all.
pip_install() {
    local log=.venv/install.log began=$SECONDS reporter failed=0 compile=--no-compile
    if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then compile=--compile; fi
    : >"$log"
    report "$log" &
    reporter=$!
    if ! uv_install "$@" >"$log" 2>&1; then
        echo "== uv did not install it, so pip does" >>"$log"
        PYTHONWARNINGS=ignore .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
            "$compile" -c deploy/constraints.txt "$@" >>"$log" 2>&1 || failed=1
    fi
    kill "$reporter" 2>/dev/null || true
    wait "$reporter" 2>/dev/null || true
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
    if [ "$failed" = 1 ]; then
        echo "== installing failed after $((SECONDS - began)) s. The end of $PWD/$log:" >&2
        tail -n 15 "$log" >&2
        return 1
    fi
    echo "== installed in $((SECONDS - began)) s" >&2
}

# uv_install ARGUMENTS: the same by uv, with pip's own configuration. Fails where uv cannot be had, or cannot do it.
uv_install() {
    local configuration options=()
    configuration=$(.venv/bin/python -m pip config list | .venv/bin/python deploy/uv_options.py) || return 1
    if [ -n "$configuration" ]; then mapfile -t options <<<"$configuration"; fi
    if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then options+=(--compile-bytecode); fi
    PYTHONWARNINGS=ignore .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --retries 1 --timeout 20 "$UV" || return 1
    .venv/bin/uv pip install --python .venv/bin/python --no-progress --index-strategy unsafe-best-match \
        -c deploy/constraints.txt "${options[@]}" "$@"
}

# report LOG: says how far it is, as its log tells, until it is killed or the script that started it is gone.
report() {
    local log="$1" began=$SECONDS every=10 known line
    known=$(grep -c '^[^#]' deploy/constraints.txt)
    if [ -t 2 ]; then every=1; fi
    while sleep "$every" && kill -0 $$ 2>/dev/null; do
        if grep -q '^Resolved ' "$log"; then
            line="   downloading and unpacking $(sed -n 's/^Resolved \([0-9]*\).*/\1/p' "$log") packages"
        elif grep -q '^Installing collected packages' "$log"; then
            line="   unpacking $(grep '^Installing collected packages' "$log" | tail -n 1 | tr ',' '\n' | wc -l) packages"
        else
            line="   found $(grep -c '^ *Collecting ' "$log" || true) of at most $known packages"
        fi
        if [ -t 2 ]; then printf '\r\033[K%s, %s s' "$line" $((SECONDS - began)) >&2; else echo "$line, $((SECONDS - began)) s" >&2; fi
    done
}
