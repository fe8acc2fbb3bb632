package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"lockstep/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the files that are generated from others")

const (
	operatorRules = "kubernetes/components/monitoring/rules.yaml"
	chartRules    = "chart/files/rules.yaml" // a chart reads only its own files
)

// TestOperatorHasTheSameRules compares the rules for the Prometheus operator, and in the chart, with those for Prometheus.
func TestOperatorHasTheSameRules(t *testing.T) {
	const header = "# Made of deploy/prometheus/rules.yaml by: go test ./deploy -run SameRules -update\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: lockstep\n  labels: {app.kubernetes.io/name: lockstep}\nspec:\n"
	rules := string(read(t, rulesFile))
	for path, want := range map[string]string{operatorRules: header + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(rules, "  $1"), chartRules: rules} {
		if *update {
			testenv.Must(0, os.WriteFile(path, []byte(want), 0o644))(t)
		}
		if string(read(t, path)) != want {
			t.Errorf("%s was not generated from %s; run go test ./deploy -run SameRules -update", path, rulesFile)
		}
	}
}

// object is an object of Kubernetes.
type object map[string]any

func (o object) String() string { return fmt.Sprint(o["kind"], "/", at(o, "metadata.name")) }

// at returns the value at a path of keys with dots between them, or nil. A number is an index of a list; ~ is a dot in a key.
func at(node any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		key = strings.ReplaceAll(key, "~", ".")
		switch n := node.(type) {
		case object:
			node = n[key]
		case map[string]any:
			node = n[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(n) {
				return nil
			}
			node = n[i]
		default:
			return nil
		}
	}
	return node
}

func decode(t *testing.T, text []byte) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o map[string]any
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o) > 0 {
			objects[object(o).String()] = o
		}
	}
}

// helm renders the chart with values.
func helm(t *testing.T, release, values string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, "helm"), "template", release, "chart", "--namespace", "lockstep", "--kube-version", "1.30", "--values", "-")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(values), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, &stderr)
	}
	return out, nil
}

func rendered(t *testing.T, release, values string) []byte {
	t.Helper()
	out := testenv.Must(helm(t, release, values))(t)
	return out
}

// kustomized returns the objects of a folder, with the files that a user makes.
func kustomized(t *testing.T, folder string) []byte {
	t.Helper()
	program := tool(t, "kustomize")
	root := filepath.Join(t.TempDir(), "kubernetes")
	testenv.Must(0, os.CopyFS(root, os.DirFS("kubernetes")))(t)
	testenv.Must(0, os.WriteFile(filepath.Join(root, "overlays/trial/api-token"), []byte("a token"), 0o600))(t)
	cmd := exec.CommandContext(t.Context(), program, "build", filepath.Join(root, folder))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	return out
}

// values returns the examples of the chart by name.
func values(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("chart/ci/*-values.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	texts := map[string]string{}
	for _, file := range files {
		texts[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = string(read(t, file))
	}
	return texts
}

var folders = []string{"base", "follow", "overlays/trial", "overlays/example"}

func TestChart(t *testing.T) {
	for name, text := range values(t) {
		lint := exec.CommandContext(t.Context(), tool(t, "helm"), "lint", "--strict", "chart", "--values", "chart/ci/"+name+"-values.yaml")
		if out, err := lint.CombinedOutput(); err != nil {
			t.Errorf("helm lint: %v\n%s", err, out)
		}
		selecting(t, name, decode(t, rendered(t, "lockstep", text)))
	}
}

func TestKustomize(t *testing.T) {
	for _, folder := range folders {
		selecting(t, folder, decode(t, kustomized(t, folder)))
	}
}

// TestSchemas validates all objects by the schemas of Kubernetes, the Prometheus operator and KEDA, which kubeconform downloads.
func TestSchemas(t *testing.T) {
	testenv.Long(t)
	var objects bytes.Buffer
	for _, text := range values(t) {
		fmt.Fprintf(&objects, "---\n%s\n", rendered(t, "lockstep", text))
	}
	for _, folder := range folders {
		fmt.Fprintf(&objects, "---\n%s\n", kustomized(t, folder))
	}
	cmd := exec.CommandContext(t.Context(), tool(t, "kubeconform"), "-strict", "-summary", "-kubernetes-version", "1.30.0", "-schema-location", "default",
		"-schema-location", "https://raw.githubusercontent.com/datreeio/CRDs-catalog/main/{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json", "-")
	cmd.Stdin = &objects
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("failed downloading schema")) {
		t.Skipf("skipped: the schemas of Kubernetes cannot be downloaded: %.300s", out)
	}
	if err != nil {
		t.Errorf("kubeconform: %v\n%s", err, out)
	}
}

// selecting checks that selectors select Pods, and that the ports of Services exist, which an API server does not.
func selecting(t *testing.T, where string, objects map[string]object) {
	t.Helper()
	for name, o := range objects {
		selector, found := at(o, "spec.selector.matchLabels"), false
		switch o["kind"] {
		case "Service":
			selector = at(o, "spec.selector")
		case "NetworkPolicy":
			selector = at(o, "spec.podSelector.matchLabels")
		case "Deployment", "StatefulSet", "DaemonSet", "PodDisruptionBudget":
		default:
			continue
		}
		for _, other := range objects {
			labels, _ := at(other, "spec.template.metadata.labels").(map[string]any)
			if len(labels) == 0 || !matches(selector, labels) {
				continue
			}
			found = true
			ports, _ := at(o, "spec.ports").([]any)
			for _, port := range ports {
				if text := fmt.Sprint(at(other, "spec.template.spec.containers.0.ports")); !strings.Contains(text, fmt.Sprint("name:", at(port, "targetPort"))) {
					t.Errorf("%s: %s: %s has no port %v: %s", where, name, other, at(port, "targetPort"), text)
				}
			}
		}
		if !found {
			t.Errorf("%s: %s selects no Pod: %v", where, name, selector)
		}
	}
}

func matches(selector any, labels map[string]any) bool {
	wanted, _ := selector.(map[string]any)
	for key, value := range wanted {
		if labels[key] != value {
			return false
		}
	}
	return len(wanted) > 0
}

// TestChartAndKustomizeAgree compares the objects of both one by one.
func TestChartAndKustomizeAgree(t *testing.T) {
	examples := values(t)
	for folder, values := range map[string]string{"base": "{}", "follow": examples["follower"], "overlays/trial": examples["trial"]} {
		t.Run(folder, func(t *testing.T) {
			want, got := normalized(t, kustomized(t, folder)), normalized(t, rendered(t, "lockstep", values))
			if folder == "base" {
				delete(got, "Secret/lockstep-api") // a requirement of base
			}
			for name, o := range want {
				if !reflect.DeepEqual(got[name], o) {
					t.Errorf("%s: the chart renders\n%v\nkustomize renders\n%v", name, got[name], o)
				}
			}
			for name := range got {
				if want[name] == nil {
					t.Errorf("only the chart renders %s", name)
				}
			}
		})
	}
}

// normalized returns objects by name, without what differs by tool: labels and annotations of Helm, the hash in the name of a generated object,
// the tag of the image, the value of a random token, and comments in settings.
func normalized(t *testing.T, text []byte) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, o := range decode(t, text) {
		o = withoutTools(map[string]any(o)).(map[string]any)
		data, _ := at(o, "data").(map[string]any)
		switch o["kind"] {
		case "Secret":
			data["token"] = ""
		case "ConfigMap":
			var settings map[string]any
			testenv.Must(0, yaml.Unmarshal([]byte(fmt.Sprint(data["lockstep.yaml"])), &settings))(t)
			data["lockstep.yaml"] = settings
		}
		objects[o.String()] = o
	}
	return objects
}

var (
	generatedName = regexp.MustCompile(`^(lockstep|lockstep-api)-[a-z0-9]{10}$`)
	imageTag      = regexp.MustCompile(`^(lockstep)(:[\w.]+)?$`)
)

func withoutTools(node any) any {
	switch node := node.(type) {
	case []any:
		for i := range node {
			node[i] = withoutTools(node[i])
		}
	case map[string]any:
		for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/settings"} {
			delete(node, label)
		}
		for key, value := range node {
			node[key] = withoutTools(value)
		}
		if annotations, ok := node["annotations"].(map[string]any); ok && len(annotations) == 0 {
			delete(node, "annotations")
		}
	case string:
		return imageTag.ReplaceAllString(generatedName.ReplaceAllString(node, "$1"), "$1")
	}
	return node
}

func TestChartRefusesWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"{wroker: {}}":                                                            "wroker",
		"{settings: {redis: 'redis://a'}}":                                        "redis",
		"{redis: {url: 'redis://me:secret@redis'}}":                               "url",
		"{redis: {url: 'redis://a', trial: {enabled: true}}}":                     "exclude each other",
		"{worker: {kind: StatefulSet}}":                                           "worker.replicas to 1",
		"{worker: {kind: StatefulSet, replicas: 1}, volume: {existingClaim: a}}":  "makes its own claim",
		"{volume: {accessModes: [ReadWriteOncePod]}}":                             "worker.replicas to 1",
		"{settings: {grace: 1m}}":                                                 "want 75 or more",
		"{settings: {grace: 1.5m}, worker: {terminationGracePeriodSeconds: 104}}": "want 105 or more",
		"{receiver: {terminationGracePeriodSeconds: 44}}":                         "receiver.terminationGracePeriodSeconds",
		"{receiver: {enabled: false}, worker: {autoscaling: {type: keda}}}":       "requires receiver.enabled",
		"{worker: {autoscaling: {type: hpa, min: 0}}}":                            "at least one worker",
		"{worker: {autoscaling: {type: keda, min: 20}}}":                          "min exceeds max",
		"{fullnameOverride: 1st}":                                                 "fullnameOverride",
		"{notifier: {podLabels: {app.kubernetes.io/name: other}}}":                "app.kubernetes.io/name",
	} {
		if _, err := helm(t, "lockstep", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", values, err, want)
		}
	}
}

// TestChartValues checks values that a chart easily renders wrongly: large numbers, which Helm reads as floats, texts that YAML reads as
// something else, null, which removes a default, and what depends on several values.
func TestChartValues(t *testing.T) {
	const (
		surge, port, job = "spec.strategy.rollingUpdate.maxSurge", "spec.egress.1.ports.0.port", "spec.jobLabel"
		settings         = "data.lockstep~yaml"
		worker           = "Deployment/lockstep-worker"
	)
	odd := `settings: {max-attempts: 123456789, log-level: "no", admin-listen: null, worker: "7"}`
	for _, tc := range []struct {
		values, object, path, want string
	}{
		{odd, "ConfigMap/lockstep", settings, "max-attempts: 123456789\n"},
		{odd, "ConfigMap/lockstep", settings, "log-level: \"no\"\n"},
		{odd, "ConfigMap/lockstep", settings, "worker: \"7\""},
		{"{}", worker, surge, "1"},
		{"volume: {accessModes: [ReadWriteOnce]}", worker, surge, "0"},
		{"volume: {accessModes: [ReadWriteOnce, ReadWriteMany]}", worker, surge, "1"},
		{"follower: {enabled: true}", "NetworkPolicy/lockstep-follow", port, "443"},
		{"follower: {enabled: true, url: 'http://reader.acme.example/lockstep'}", "NetworkPolicy/lockstep-follow", port, "80"},
		{"follower: {enabled: true, url: 'https://[2001:db8::1]:8443'}", "NetworkPolicy/lockstep-follow", port, "8443"},
		{"{fullnameOverride: acme, monitoring: {podMonitor: {enabled: true}}}", "PodMonitor/acme", job, "app.kubernetes.io/name"},
		{"{fullnameOverride: my-lockstep, monitoring: {podMonitor: {enabled: true}}}", "PodMonitor/my-lockstep", job, "<nil>"},
	} {
		o := decode(t, rendered(t, "lockstep", tc.values))[tc.object]
		if got := fmt.Sprint(at(o, tc.path)); got != tc.want && (tc.path != settings || !strings.Contains(got, tc.want)) {
			t.Errorf("%s: %s of %s is %s, want %s", tc.values, tc.path, tc.object, got, tc.want)
		}
	}
}

// TestReleasesInOneNamespace checks that two releases share no object, and that their names are valid, however long.
func TestReleasesInOneNamespace(t *testing.T) {
	long := "release-" + strings.Repeat("a", 40) // a release's name has at most 53 characters
	seen := map[string]bool{}
	for _, release := range []string{"one", "two", long + "-one", long + "-two", "lock.step"} {
		for name := range decode(t, rendered(t, release, string(read(t, "chart/ci/trial-values.yaml")))) {
			_, name, _ = strings.Cut(name, "/")
			if !regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(name) {
				t.Errorf("%s: not a DNS label that begins with a letter", name)
			}
		}
		for name := range decode(t, rendered(t, release, "{}")) {
			if seen[name] {
				t.Errorf("two releases have %s", name)
			}
			seen[name] = true
		}
	}
	if _, err := helm(t, "1st", "{}"); err == nil || !strings.Contains(err.Error(), "set fullnameOverride") {
		t.Errorf("error %v, want one that says what to set", err)
	}
}
