package term

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Prompt asks questions on a terminal.
type Prompt struct {
	in  *bufio.Reader
	out io.Writer
}

// NewPrompt returns a Prompt that reads standard input and asks on standard error, or nil if standard input is not a terminal.
func NewPrompt(std Streams) *Prompt {
	if !isTerminal(std.Stdin) {
		return nil
	}
	return &Prompt{bufio.NewReader(std.Stdin), std.Stderr}
}

// Ask asks until check accepts the answer. An empty answer is the value given, and "-" is no value.
func (p *Prompt) Ask(text, value string, check func(string) error) (string, error) {
	for {
		fmt.Fprintf(p.out, "%s [%s]: ", text, value)
		line, err := p.in.ReadString('\n')
		if err != nil {
			return "", errors.New("no answer: standard input ended; nothing was written")
		}
		answer := strings.TrimSpace(line)
		switch answer {
		case "":
			answer = value
		case "-":
			answer = ""
		}
		if err := check(answer); err != nil {
			fmt.Fprintf(p.out, "%s\n", Clean(OneLine(err)))
			continue
		}
		return answer, nil
	}
}
