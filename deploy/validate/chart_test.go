package validate

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// examples are the files of values in ci, with the least number of objects that each renders.
var examples = map[string]int{"trial": 18, "production": 18, "keda": 15, "local-disk": 12, "follower": 2}

func TestChart(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for name, least := range examples {
		t.Run(name, func(t *testing.T) {
			objects := chartObjects(t, example(t, name))
			if len(objects) < least {
				t.Errorf("%d objects, want %d or more", len(objects), least)
			}
			seen := map[string]bool{}
			for _, o := range objects {
				if err := all.check(o); err != nil {
					t.Errorf("%s: %v", o, err)
				}
				if seen[o.String()] {
					t.Errorf("%s is rendered twice", o)
				}
				seen[o.String()] = true
			}
			elsewhere := slices.Concat(made(t, "overlays/example"), made(t, "follow"))
			for _, problem := range slices.Concat(dangling(objects, elsewhere), restricted(objects), reached(objects)) {
				t.Error(problem)
			}
		})
	}
}

// reached reports scaled objects that do not exist, and a scaler whose URL leads nowhere.
func reached(objects []object) (problems []string) {
	named := map[string]object{}
	for _, o := range objects {
		named[o.String()] = o
	}
	for _, o := range objects {
		if o.kind() != "HorizontalPodAutoscaler" && o.kind() != "ScaledObject" {
			continue
		}
		target := named[fmt.Sprintf("%s/%s", at(o, "spec", "scaleTargetRef", "kind"), at(o, "spec", "scaleTargetRef", "name"))]
		if target == nil || at(target, "spec", "replicas") != nil {
			problems = append(problems, fmt.Sprintf("%s scales nothing, or what has a fixed number of replicas: %v", o, target))
		}
		for _, trigger := range each(at(o, "spec", "triggers")) {
			url := fmt.Sprint(at(trigger, "metadata", "url"))
			service := named["Service/lockstep"]
			if service == nil || url != fmt.Sprintf("http://%s.%s:%v/api/v1/scale", service.name(), namespace, each(at(service, "spec", "ports"))[0]["port"]) {
				problems = append(problems, fmt.Sprintf("%s asks %s, which is not the receivers' Service", o, url))
			}
		}
	}
	return problems
}

// TestChartAndKustomizeAgree compares the objects of the chart and of kustomize one by one, without the labels and the names
// that tools add.
func TestChartAndKustomizeAgree(t *testing.T) {
	for folder, values := range map[string]map[string]any{
		"base":           {},
		"follow":         example(t, "follower"),
		"overlays/trial": example(t, "trial"),
	} {
		t.Run(folder, func(t *testing.T) {
			want, got := normalized(t, build(t, folder)), normalized(t, chartObjects(t, values))
			if folder == "base" { // its Secret is a requirement
				if at(got["Secret/lockstep-api"], "data", "token") == nil {
					t.Error("the chart makes no API token")
				}
				delete(got, "Secret/lockstep-api")
			}
			for _, name := range slices.Sorted(maps.Keys(want)) {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: the chart renders\n%s\nkustomize renders\n%s", name, text(t, got[name]), text(t, want[name]))
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("only the chart renders %s", name)
			}
		})
	}
}

// normalized returns objects by name, without what differs by tool: labels and annotations of Helm, the hash in the name of a
// generated object, the tag of the image, the value of a random token, and the spelling of settings.
func normalized(t *testing.T, objects []object) map[string]object {
	t.Helper()
	hashed := regexp.MustCompile(`^(lockstep|lockstep-api)-[a-z0-9]{10}$`)
	image := regexp.MustCompile(`^(lockstep)(:[\w.]+)?$`)
	var clean func(node any) any
	clean = func(node any) any {
		switch node := node.(type) {
		case []any:
			for i := range node {
				node[i] = clean(node[i])
			}
		case map[string]any:
			for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/settings"} {
				delete(node, label)
			}
			for key, value := range node {
				node[key] = clean(value)
			}
			if annotations, ok := node["annotations"].(map[string]any); ok && len(annotations) == 0 {
				delete(node, "annotations")
			}
		case string:
			return image.ReplaceAllString(hashed.ReplaceAllString(node, "$1"), "$1")
		}
		return node
	}
	named := map[string]object{}
	for _, o := range objects {
		o = clean(map[string]any(o)).(map[string]any)
		if o.kind() == "ConfigMap" {
			data := o["data"].(map[string]any)
			data["lockstep.yaml"] = map[string]any(read(t, []byte(fmt.Sprint(data["lockstep.yaml"]))))
		}
		if o.kind() == "Secret" {
			o["data"].(map[string]any)["token"] = ""
		}
		named[o.String()] = o
	}
	return named
}

func text(t *testing.T, o object) string {
	t.Helper()
	content, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestChartRefusesWrongValues(t *testing.T) {
	for name, tc := range map[string]struct{ values, want string }{
		"an unknown value":              {"{wroker: {}}", "wroker"},
		"an unknown value of a process": {"{worker: {replica: 3}}", "replica"},
		"a number as text":              {"{worker: {replicas: two}}", "replicas"},
		"no memory limit":               {"{worker: {resources: {limits: null}}}", "limits"},
		"another port":                  {"{settings: {listen: ':9090'}}", "listen"},
		"a setting that is a value":     {"{settings: {redis: 'redis://a'}}", "redis"},
		"a password in the URL":         {"{redis: {url: 'redis://me:secret@redis'}}", "url"},
		"two kinds of Redis":            {"{redis: {url: 'redis://a', trial: {enabled: true}}}", "exclude each other"},
		"workers that share no volume":  {"{worker: {kind: StatefulSet}}", "worker.replicas to 1"},
		"a claim of its own and another": {
			"{worker: {kind: StatefulSet, replicas: 1}, volume: {existingClaim: a}}", "makes its own claim"},
		"two workers on a volume for one": {"{volume: {accessModes: [ReadWriteOncePod]}}", "worker.replicas to 1"},
		"scaling on a volume for one": {
			"{volume: {accessModes: [ReadWriteOncePod]}, worker: {replicas: 1, autoscaling: {type: keda}}}", "worker.replicas to 1"},
		"a worker killed while it drains":   {"{settings: {grace: 1m}}", "want 75 or more"},
		"a receiver killed while it drains": {"{receiver: {terminationGracePeriodSeconds: 44}}", "receiver.terminationGracePeriodSeconds"},
		"no worker at all":                  {"{worker: null}", "worker"},
		"no resources":                      {"{notifier: {resources: null}}", "resources"},
		"a name with dots":                  {"{fullnameOverride: lock.step}", "fullnameOverride"},
		"a name that begins with a digit":   {"{fullnameOverride: 1st}", "fullnameOverride"},
		"metrics for all, by mistake":       {"{networkPolicy: {scrapeNamespaces: null}}", "scrapeNamespaces"},
		"an amount that is none":            {"{worker: {resources: {limits: {memory: plenty}}}}", "memory"},
		"less than no Pods":                 {"{worker: {pdb: {maxUnavailable: -1}}}", "maxUnavailable"},
		"no key of a Secret":                {"{redis: {existingSecret: a, key: null}}", "key"},
		"a port that is none":               {"{networkPolicy: {followerPorts: [https]}}", "followerPorts"},
		"a ServiceMonitor without a Service": {
			"{receiver: {enabled: false}, monitoring: {serviceMonitor: {enabled: true}}}", "requires receiver.enabled"},
		"keda without receivers":       {"{receiver: {enabled: false}, worker: {autoscaling: {type: keda}}}", "requires receiver.enabled"},
		"hpa to zero":                  {"{worker: {autoscaling: {type: hpa, min: 0}}}", "at least one worker"},
		"more at least than at most":   {"{worker: {autoscaling: {type: keda, min: 20}}}", "min exceeds max"},
		"an ingress without receivers": {"{receiver: {enabled: false}, ingress: {enabled: true}}", "requires receiver.enabled"},
		"a credential that climbs":     {"{worker: {credentials: {../a: {secret: a, keys: [urls]}}}}", "../a"},
		"a label that selects Pods":    {"{notifier: {podLabels: {app.kubernetes.io/name: other}}}", "app.kubernetes.io/name"},
		"a URL without a scheme":       {"{redis: {url: 'redis.example.org:6379'}}", "url"},
		"an unknown role":              {"{worker: {roles: [workers]}}", "roles"},
		"a spread of other Pods": {
			"{worker: {topologySpread: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}}", "topologySpread"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderChart(t, parseYAML(t, tc.values)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// The Pods of a StatefulSet get a label with its name and a hash of ten characters, which may have 63.
func TestChartNamesAreShort(t *testing.T) {
	for _, values := range []string{"{}", "{worker: {kind: StatefulSet, replicas: 1}}", "{redis: {trial: {enabled: true}}, nameOverride: a}"} {
		all := parseYAML(t, values)
		all["fullnameOverride"] = strings.Repeat("a", 42) + "-" + strings.Repeat("b", 20)
		objects := chartObjects(t, all)
		for _, o := range objects {
			if len(o.name()) > 63 || o.kind() == "StatefulSet" && len(o.name()) > 52 {
				t.Errorf("%s has %d characters", o, len(o.name()))
			}
		}
		if len(objects) < 15 {
			t.Errorf("%s: only %d objects", values, len(objects))
		}
	}
}

func TestScalersOfNothingAreReported(t *testing.T) {
	objects := chartObjects(t, example(t, "keda"))
	for _, o := range objects {
		if o.kind() == "ScaledObject" {
			at(o, "spec", "scaleTargetRef").(map[string]any)["kind"] = "StatefulSet"
			at(each(at(o, "spec", "triggers"))[0], "metadata").(map[string]any)["url"] = "http://elsewhere/api/v1/scale"
		}
	}
	if problems := reached(objects); len(problems) != 2 {
		t.Errorf("problems %q, want two", problems)
	}
}

// Values that a chart easily renders wrongly: large numbers, which Helm reads as floats, texts that YAML reads as something
// else, lists, and null, which removes a default.
func TestChartSettings(t *testing.T) {
	values := parseYAML(t, `{settings: {stream-max-length: 123456789, prefix: "lockstep:{1}:", hosts: ["*.example.org", 10.0.0.0/8], log-level: "no",
		dashboard: false, admin-listen: null, worker: "7"}}`)
	for _, o := range chartObjects(t, values) {
		if o.kind() != "ConfigMap" {
			continue
		}
		got := read(t, []byte(fmt.Sprint(at(o, "data", "lockstep.yaml"))))
		for name, want := range map[string]any{
			"stream-max-length": 123456789, "prefix": "lockstep:{1}:", "hosts": []any{"*.example.org", "10.0.0.0/8"}, "log-level": "no",
			"dashboard": false, "admin-listen": nil, "worker": "7", "slots": 16, "redis": "redis://lockstep-redis:6379",
		} {
			if !reflect.DeepEqual(got[name], want) {
				t.Errorf("%s: %#v, want %#v", name, got[name], want)
			}
		}
	}
}

// TestHelmRendersTheSame compares the templates as rendered here with those that Helm renders, if it is installed.
func TestHelmRendersTheSame(t *testing.T) {
	helm, err := exec.LookPath("helm")
	switch {
	case err != nil && os.Getenv("LOCKSTEP_TEST_HELM") == "real":
		t.Fatal("LOCKSTEP_TEST_HELM=real, but helm is not in PATH")
	case err != nil:
		t.Skip("helm is not in PATH")
	}
	if out, err := exec.CommandContext(t.Context(), helm, "lint", "--strict", chartDir).CombinedOutput(); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}
	texts := map[string]string{"everything": everything, "least": least}
	for name := range examples {
		texts[name] = readFile(t, fmt.Sprintf("ci/%s-values.yaml", name))
	}
	for name, values := range texts {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), helm, "template", release, chartDir, "--namespace", namespace, "--kube-version", kubernetes, "--values", "-")
			cmd.Stdin = strings.NewReader(values)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, &stderr)
			}
			want, got := sorted(documents(t, string(out))), chartObjects(t, parseYAML(t, values))
			for _, objects := range [][]object{want, got} {
				for _, o := range objects {
					if o.kind() == "Secret" {
						delete(o, "data") // random
					}
				}
			}
			if len(got) != len(want) {
				t.Fatalf("Helm renders %v, this test %v", want, got)
			}
			for i := range want {
				if !reflect.DeepEqual(got[i], want[i]) {
					t.Errorf("Helm renders\n%s\nthis test\n%s", text(t, want[i]), text(t, got[i]))
				}
			}
		})
	}
}

// TestDocumentNamesObjects checks that the objects which docs/kubernetes.md names are those of the chart.
func TestDocumentNamesObjects(t *testing.T) {
	manual, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range []string{"trial", "follower"} {
		for _, o := range chartObjects(t, example(t, name)) {
			named[strings.ToLower(o.String())] = true
			named[o.kind()+" `"+o.name()+"`"] = true
		}
	}
	found := regexp.MustCompile("(?:deployment|svc|statefulset)/lockstep[a-z-]*|(?:Deployment|StatefulSet|DaemonSet) `[a-z-]+`").FindAllString(string(manual), -1)
	for _, name := range found {
		if !named[strings.Replace(name, "svc/", "service/", 1)] {
			t.Errorf("docs/kubernetes.md names %s, which the chart does not render", name)
		}
	}
	if len(found) < 8 {
		t.Errorf("only %d names found", len(found))
	}
}
