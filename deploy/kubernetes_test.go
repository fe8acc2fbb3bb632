package deploy

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "rewrite the files that are generated from others")

const (
	operatorRules = "kubernetes/components/monitoring/rules.yaml"
	chartRules    = "chart/files/rules.yaml" // a chart reads only its own files
)

// TestOperatorHasTheSameRules compares the rules for the Prometheus operator with those for Prometheus.
func TestOperatorHasTheSameRules(t *testing.T) {
	var rules yaml.Node
	if err := yaml.Unmarshal(read(t, rulesFile), &rules); err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	want.WriteString("# Made of deploy/prometheus/rules.yaml by: go test ./deploy -run SameRules -update\n")
	encoder := yaml.NewEncoder(&want)
	encoder.SetIndent(2)
	withoutComments(&rules)
	if err := encoder.Encode(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"name": "lockstep", "labels": map[string]string{"app.kubernetes.io/name": "lockstep"}},
		"spec":     rules.Content[0],
	}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]byte{operatorRules: want.Bytes(), chartRules: read(t, rulesFile)} {
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(read(t, path), want) {
			t.Errorf("%s was not generated from %s; run go test ./deploy -run SameRules -update", path, rulesFile)
		}
	}
}

// withoutComments removes comments, which stay in the source file.
func withoutComments(node *yaml.Node) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	for _, child := range node.Content {
		withoutComments(child)
	}
}
