# Completion of squish in bash. `squish --show-completion bash` prints this file; squish itself lists the words.
_squish() {
    local mode line
    COMPREPLY=()
    {
        read -r mode
        while IFS= read -r line; do COMPREPLY+=("$line"); done
    } < <(_SQUISH_COMPLETE=bash _SQUISH_BREAKS=$COMP_WORDBREAKS "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ $mode == files ]]; then
        COMPREPLY=("${COMPREPLY[@]%/}")
        compopt -o filenames 2>/dev/null
    elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _squish squish
