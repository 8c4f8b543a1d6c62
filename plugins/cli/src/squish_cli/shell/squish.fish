# Completion of squish in fish. `squish --show-completion fish` prints this file; squish itself lists the words.
function __squish_complete
    set -l words (commandline -opc)
    set -lx _SQUISH_COMPLETE fish
    set -l answer ($words[1] $words[2..-1] (commandline -ct) 2>/dev/null)
    set -q answer[2]; and printf '%s\n' $answer[2..-1]
end
complete -c squish -f -a '(__squish_complete)'
