/* shell_text.h -- commands that the program prints to be pasted into a shell. */
#ifndef MODEL_CORE_SHELL_TEXT_H
#define MODEL_CORE_SHELL_TEXT_H

/* The text as one word for a shell, which reads it back byte for byte; the caller frees. Where it
 * has control characters or bytes that are not UTF-8, the form is $'...', which bash, zsh and ksh
 * know. */
char *shell_quoted(const char *text);

/* The same for a path, which must not be taken for an option. */
char *shell_quoted_path(const char *path);

#endif
