# Sourced by deploy/quickstart and tests/run, from the repository's root. Needs bash and Python 3.11+, nothing else.

# Prints the interpreter to use: new enough and able to make a virtual environment. Says what to do if there is none.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    echo "Trunkline needs Python 3.11 or newer with its venv module (on Debian: apt-get install python3-venv)." >&2
    echo "Set PYTHON=/path/to/python3 if it is not on the PATH." >&2
    return 1
}

# environment EXTRAS: makes .venv and installs this checkout with those extras, unless that was done already.
# The stamp holds a checksum of what was asked for, so a second run costs a comparison.
environment() {
    local extras="$1" wanted stamp
    wanted=$(cat pyproject.toml deploy/constraints.txt | cksum)
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
    printf '%s\n' "$wanted" >".venv/.trunkline-$extras"
}

# pip_install ARGUMENTS: pip install with the project's pins. Progress bars on a terminal, else a line per download;
# pip's remarks about search locations that do not exist are left out.
pip_install() {
    local -a pip=(env PYTHONWARNINGS=ignore .venv/bin/python -m pip install --disable-pip-version-check --no-input -c deploy/constraints.txt)
    if [ -t 1 ]; then
        "${pip[@]}" "$@" 2> >(grep --line-buffered -v "^WARNING: Location" >&2)
    else
        "${pip[@]}" "$@" > >(grep --line-buffered -E '^ *(Downloading |Installing collected|Successfully installed)' >&2) \
            2> >(grep --line-buffered -v "^WARNING: Location" >&2)
    fi
}
