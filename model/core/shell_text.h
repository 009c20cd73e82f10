/* shell_text.h -- quotes text for the commands that the program prints for pasting into a shell. */
#ifndef MODEL_CORE_SHELL_TEXT_H
#define MODEL_CORE_SHELL_TEXT_H

/* Returns the text as one shell word, which a shell reads back byte for byte; the caller frees.
 * Text with control characters or invalid UTF-8 is written as $'...', which bash, zsh and ksh
 * understand. */
char *shell_quoted(const char *text);

/* Like shell_quoted, but for a path: a leading '-' gets "./" before it, so that it is not taken for
 * an option. */
char *shell_quoted_path(const char *path);

#endif
