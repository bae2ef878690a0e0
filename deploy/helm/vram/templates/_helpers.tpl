{{/* observer, or actor: what the DaemonSet is called. */}}
{{- define "vram.role" -}}
{{ if .Values.actor.enabled }}actor{{ else }}observer{{ end }}
{{- end }}

{{- define "vram.name" -}}
{{ printf "%s-%s" (.Release.Name | trunc 50) (include "vram.role" .) }}
{{- end }}

{{- define "vram.labels" -}}
app.kubernetes.io/name: vram
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ include "vram.role" . }}
{{- end }}

{{/* Where the runtime leaves the files that name pods; its socket lies elsewhere. */}}
{{- define "vram.runtimeFiles" -}}
{{ get (dict
  "containerd" "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
  "k3s" "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io"
  "cri-o" "/run/containers/storage/overlay-containers"
  "none" "") .Values.containerRuntime }}
{{- end }}
