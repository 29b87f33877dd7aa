#compdef tsdfm
# Completion of tsdfm for zsh. In ~/.zshrc, after compinit: eval "$(tsdfm completion zsh)"
_tsdfm() {
    local line files
    local -a asked found
    asked=("${(@)words[2,CURRENT]}")
    for line in "${(@f)$("${words[1]}" completion zsh "${(@)asked/#/--words=:}" 2>/dev/null)}"; do
        case $line in
            "") ;;
            PATH) files=yes ;;
            *) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( $#found )) && _describe -V tsdfm found
    if [[ -n $files ]]; then
        compset -P '--*='
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _tsdfm "$@"; else compdef _tsdfm tsdfm; fi
