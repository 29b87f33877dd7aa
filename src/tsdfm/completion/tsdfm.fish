# Completion of tsdfm for fish. In ~/.config/fish/config.fish: tsdfm completion fish | source
function __tsdfm_answers
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    for line in ($words[1] completion fish "--words=:"$words[2..-1] "--words=:$begun" 2>/dev/null)
        if test "$line" = PATH
            __fish_complete_path "$begun"
        else
            printf '%s\n' "$line"
        end
    end
end
complete -c tsdfm -f -k -a '(__tsdfm_answers)'
