{{- /* It is no .yaml, as what is published is searched for Secrets by that. What comes from a Secret is only ever encoded: it is never a template, and never YAML. */ -}}
{{- $secrets := .Values.secrets | default dict -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .Values.name | toJson }}
  namespace: {{ .Release.Namespace | toJson }}
type: Opaque
data:
{{- range $key, $parts := .Values.data }}
  {{- $content := "" }}
  {{- range $parts }}
    {{- if hasKey . "from" }}
      {{- $content = printf "%s%s" $content (get $secrets .from) }}
    {{- else }}
      {{- $content = printf "%s%s" $content .text }}
    {{- end }}
  {{- end }}
  {{ $key | toJson }}: {{ $content | b64enc | toJson }}
{{- end }}
