package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Tables returns the basic settings, the advanced ones and the limits as Markdown tables, for docs/configuration.md.
func Tables() (basicTable, advancedTable, limitTable string) {
	return table(basic), table(advanced), limitsTable()
}

func limitsTable() string {
	usual, large := defaultLimits, largeLimits
	other := large.byName()
	var b strings.Builder
	b.WriteString("| limit | default | large | meaning |\n|---|---|---|---|\n")
	usual.byName().VisitAll(func(f *pflag.Flag) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Value, other.Lookup(f.Name).Value, f.Usage)
	})
	return b.String()
}

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
