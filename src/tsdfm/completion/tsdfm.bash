# Completion of tsdfm for bash. In ~/.bashrc: eval "$(tsdfm completion bash)"
_tsdfm() {
    local begun="${COMP_WORDS[COMP_CWORD]}" line
    local -a asked=("${COMP_WORDS[@]:1:COMP_CWORD}")
    [[ $begun == "=" ]] && begun=""
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == PATH ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$begun")
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" completion bash "${asked[@]/#/--words=:}" 2>/dev/null)
}
complete -F _tsdfm tsdfm
