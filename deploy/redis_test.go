package deploy

import (
	"regexp"
	"strings"
	"testing"
)

// TestShippedRedisFlushesBeforeItAnswers checks every redis-server command line in the deployment files.
func TestShippedRedisFlushesBeforeItAnswers(t *testing.T) {
	separators := regexp.MustCompile(`[\s,"\[\]-]+`) // arguments are one per line or in one list, with or without quotes
	servers := 0
	for path, text := range deployed(t) {
		for _, command := range strings.Split(text, "redis-server")[1:] {
			if strings.HasPrefix(command, ".service") {
				continue // a unit of systemd
			}
			servers++
			words := " " + strings.Join(separators.Split(command[:min(len(command), 500)], -1), " ") + " "
			for _, want := range []string{" appendonly yes ", " appendfsync always ", " policy noeviction "} {
				if !strings.Contains(words, want) {
					t.Errorf("redis-server in %s lacks%s", path, want)
				}
			}
		}
	}
	if servers < 4 {
		t.Errorf("%d command lines of redis-server, want those of both Compose files, the chart and Kustomize", servers)
	}
}
