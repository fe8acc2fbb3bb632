package config

import (
	"fmt"
	"strings"
)

// parseCommands parses pairs such as docs=/usr/local/bin/reindex --all, and a command without an app. No command has a
// comma, which separates them in a variable.
func parseCommands(items []string) (map[string][]string, error) {
	commands := map[string][]string{}
	for item := range strings.SplitSeq(strings.Join(items, ","), ",") {
		app, text, named := strings.Cut(item, "=")
		if app = strings.TrimSpace(app); !named || strings.ContainsAny(app, "/ ") { // an argument of the command may have one
			app, text = "", item
		}
		words := strings.Fields(text)
		switch {
		case len(words) == 0 && !named:
			continue
		case len(words) == 0:
			return nil, fmt.Errorf("exec %q: want a command after =, as in docs=/usr/local/bin/reindex", item)
		case commands[app] != nil:
			return nil, fmt.Errorf("exec %q: a command of the same app precedes it; remove one, and use a script for several, "+
				"or for one that has a comma", item)
		}
		commands[app] = words
	}
	return commands, nil
}

// Commands returns the words of the commands of the setting exec by app, "" for one without an app.
func (c *Config) Commands() map[string][]string { return c.commands }
