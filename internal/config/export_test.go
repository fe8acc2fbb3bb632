package config

import (
	"fmt"
	"strings"
)

// Tables returns the basic and the advanced settings as Markdown tables, for docs/configuration.md.
func Tables() (basicTable, advancedTable string) { return table(basic), table(advanced) }

func table(t tier) string {
	var b strings.Builder
	b.WriteString("| setting | default | meaning |\n|---|---|---|\n")
	for _, s := range settings {
		if s.tier != t {
			continue
		}
		shown := s.shown
		if shown == "" {
			shown = fmt.Sprint(s.value)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.name, shown, strings.ReplaceAll(s.usage, "`", ""))
	}
	return b.String()
}
